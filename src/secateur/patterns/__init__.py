"""Patterns: which shapes of zeros are allowed. A pattern cuts a tensor into units that are kept or removed whole."""

from __future__ import annotations

from secateur.patterns._block import Block
from secateur.patterns._channel import Channel
from secateur.patterns._nm import NM
from secateur.patterns._pattern import Pattern
from secateur.patterns._registry import PATTERNS
from secateur.patterns._unstructured import Unstructured

__all__ = ["NM", "PATTERNS", "Block", "Channel", "Pattern", "Unstructured"]
