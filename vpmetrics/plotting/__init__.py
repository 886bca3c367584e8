"""Drawing: the one room that imports matplotlib."""
