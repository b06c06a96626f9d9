"""One parameter and all that is keyed on it: resize, grow, transactions, and the tables they follow."""

from secateur.surgery.change import Change as Change
from secateur.surgery.computed import parametrization_rule as parametrization_rule
from secateur.surgery.edits import Do as Do
from secateur.surgery.edits import SetAttr as SetAttr
from secateur.surgery.edits import SetItem as SetItem
from secateur.surgery.holders import finder as finder
from secateur.surgery.holders import holder as holder
from secateur.surgery.resize import grow_ as grow_
from secateur.surgery.resize import resize_ as resize_
from secateur.surgery.rules import Entry as Entry
from secateur.surgery.rules import state_rule as state_rule
from secateur.surgery.selection import Selection as Selection
from secateur.surgery.sizes import size_rule as size_rule
from secateur.surgery.transaction import Transaction as Transaction
from secateur.surgery.transaction import transaction as transaction

__all__ = [
    "Change",
    "Do",
    "Entry",
    "Selection",
    "SetAttr",
    "SetItem",
    "Transaction",
    "finder",
    "grow_",
    "holder",
    "parametrization_rule",
    "resize_",
    "size_rule",
    "state_rule",
    "transaction",
]
