"""Conditions: which side is enrolled, and which is tested.

And which pairs of one speaker are trials.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

SideName = Literal["original", "protected"]


class Condition(NamedTuple):
    """A way of forming trials.

    Pairs of two speakers are always trials. Pairs of one speaker are target trials if they come
    from ``"any"`` two sessions, from the ``"same"`` session, or from ``"other"`` ones. A session is
    one draw of the anonymiser's secret.
    """

    name: str
    enrolment: SideName
    test: SideName
    target_sessions: str = "any"

    @property
    def is_same_side(self) -> bool:
        """Whether enrolment and test are the same side, so that a pair has no direction."""
        return self.enrolment == self.test


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("OO", "original", "original"),
        Condition("OP", "original", "protected"),
        Condition("PP", "protected", "protected"),
        Condition("within", "protected", "protected", target_sessions="same"),
        Condition("across", "protected", "protected", target_sessions="other"),
    )
}
WITHOUT_SESSIONS = ("OO", "OP", "PP")  # the conditions that need no sessions


def look_up_condition(name: Any) -> Condition:
    """Return the condition of a name; raise where there is none, also for a :class:`Condition`."""
    if isinstance(name, str) and name in CONDITIONS:
        return CONDITIONS[name]
    without_sessions = ", ".join(map(repr, WITHOUT_SESSIONS))
    with_sessions = ", ".join(map(repr, [*CONDITIONS][len(WITHOUT_SESSIONS) :]))
    raise ValueError(
        f"Expected `condition` to be one of {without_sessions}, but got {name!r}. With sessions"
        f" also: {with_sessions}."
    )
