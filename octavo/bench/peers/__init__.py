"""Octavo and its peers on one machine, in turns, each in processes of its own that are started and stopped here."""
