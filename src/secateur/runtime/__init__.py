"""Masked models made really smaller and faster: packed weights, products that skip zeros, and what they gain.

Files: compressing (`compress`), preparing (a plain copy without empty units), observing (one watched run), norms
(BatchNorm folded), trial and choosing (a format for each layer, by the clock), comparing (two models side by
side), recipe (what becomes what), layers, attention, calls (the modules and ops that run), formats (how weights are
packed), compressed, origins, describing and files (what is returned and saved), dense (the way back), table (the
report), zeros (patterns); profiling (`profile`) and its parts.
"""

from secateur.runtime.compressed import Compressed
from secateur.runtime.compressing import compress
from secateur.runtime.files import load_compressed
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS
from secateur.runtime.profile_result import ModelProfile, Profile
from secateur.runtime.profiling import profile
from secateur.runtime.table import CompressionReport, LayerLine
from secateur.runtime.zeros import pattern_of

__all__ = [
    "CONV_FORMATS",
    "LINEAR_FORMATS",
    "Compressed",
    "CompressionReport",
    "LayerLine",
    "ModelProfile",
    "Profile",
    "compress",
    "load_compressed",
    "pattern_of",
    "profile",
]
