"""Demonstrations: in memory (`memory`), read from files (`files`), chosen (`select`), written."""
