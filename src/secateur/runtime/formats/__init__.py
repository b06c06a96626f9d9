"""Formats of weights, and the products that read them.

A format is a row of `LINEAR_FORMATS` or `CONV_FORMATS`: how to pack a weight, how to get it back, and the product. The
tests of the table hold every row to the dense product, so a new format joins by being added here.

Files: _format (what a format is), grouped, torch_csr (torch alone); lanes, blocks16, csr, direct (native); prepacked
(oneDNN; dense).
"""

from secateur.runtime.formats._format import ConvFormat, Geometry, LinearFormat, Parts
from secateur.runtime.formats.blocks16 import BLOCKS_16
from secateur.runtime.formats.csr import CSR
from secateur.runtime.formats.direct import DIRECT
from secateur.runtime.formats.grouped import GROUPED
from secateur.runtime.formats.lanes import LANES
from secateur.runtime.formats.prepacked import PREPACKED_CONV, PREPACKED_LINEAR
from secateur.runtime.formats.torch_csr import TORCH_CSR

__all__ = ["CONV_FORMATS", "LINEAR_FORMATS", "PREPACKED", "ConvFormat", "Geometry", "LinearFormat", "Parts"]

LINEAR_FORMATS: dict[str, LinearFormat] = {
    each.name: each for each in (BLOCKS_16, LANES, CSR, GROUPED, TORCH_CSR, PREPACKED_LINEAR)
}
"""Formats of linear layers by name."""

CONV_FORMATS: dict[str, ConvFormat] = {each.name: each for each in (DIRECT, PREPACKED_CONV)}
"""Formats of convolutions by name."""

PREPACKED = PREPACKED_LINEAR.name
"""Name of the dense format, of both kinds of layers."""
