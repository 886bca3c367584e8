"""From utterances to trials: which pairs are compared, and how they are walked without being stored."""
