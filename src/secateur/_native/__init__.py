"""Kernels in C, and pure torch where there is no compiler.

The C sources are plain C, without a header of torch or Python, loaded with ctypes: one library serves every version of
both. Each source is compiled for several instruction sets, and the loader takes the best that the machine has.

Files: compiling (sources to library), loading (library to functions); one file for each C source with its functions by
their Python names, which take tensors.
"""

from secateur._native.loading import Library, library, status

__all__ = ["Library", "library", "status"]
