"""Why training stopped: findings about a training setup, their repair, and a watch that notices as it happens."""

from secateur.doctor.diagnosis import diagnose as diagnose
from secateur.doctor.findings import Finding as Finding
from secateur.doctor.findings import Findings as Findings
from secateur.doctor.registry import CHECKS as CHECKS
from secateur.doctor.registry import Check as Check
from secateur.doctor.registry import check as check
from secateur.doctor.relink import Relinked as Relinked
from secateur.doctor.relink import relink_ as relink_
from secateur.doctor.setup import Setup as Setup
from secateur.doctor.setup import Slot as Slot
from secateur.doctor.watching import Watch as Watch
from secateur.doctor.watching import watch as watch

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Findings",
    "Relinked",
    "Setup",
    "Slot",
    "Watch",
    "check",
    "diagnose",
    "relink_",
    "watch",
]
