"""Making lists of resources true, and looking at how they stand, with a record of what is ours."""

from agent.reconcile.change import Change, Line
from agent.reconcile.checks import check, impossible
from agent.reconcile.reconciler import Outcome, Reconciler, Step
from agent.reconcile.record import Entry, Nothing, Phase, Record, Recorded
from agent.reconcile.survey import Finding, Surveyor
from agent.reconcile.wanted import Kinds

__all__ = [
    "Change",
    "Entry",
    "Finding",
    "Kinds",
    "Line",
    "Nothing",
    "Outcome",
    "Phase",
    "Reconciler",
    "Record",
    "Recorded",
    "Step",
    "Surveyor",
    "check",
    "impossible",
]
