"""Conditions: which side the references are of, which the probes, and which pairs of one speaker are trials."""

from __future__ import annotations

from typing import Any, NamedTuple


class Condition(NamedTuple):
    """A way of forming trials.

    ``reference`` and ``probe`` name a side, ``"original"`` or ``"protected"``. Pairs of two speakers are always trials;
    of one speaker, those of ``"any"`` two sessions, of the ``"same"`` one, or of ``"other"`` ones. A session is one
    draw of what an anonymiser keeps secret.
    """

    name: str
    reference: str
    probe: str
    own_session: str = "any"

    @property
    def one_sided(self) -> bool:
        """Whether references and probes are of one side, so that a pair has no direction."""
        return self.reference == self.probe


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("OO", "original", "original"),
        Condition("OP", "original", "protected"),
        Condition("PP", "protected", "protected"),
        Condition("within", "protected", "protected", own_session="same"),
        Condition("across", "protected", "protected", own_session="other"),
    )
}
ALWAYS = ("OO", "OP", "PP")  # the conditions that need no sessions


def condition_of(name: Any) -> Condition:
    """The condition a user named."""
    if isinstance(name, str) and name in CONDITIONS:
        return CONDITIONS[name]
    always, others = (", ".join(map(repr, names)) for names in (ALWAYS, [n for n in CONDITIONS if n not in ALWAYS]))
    raise ValueError(f"Expected `condition` to be one of {always}, but got {name!r}. With sessions also: {others}.")
