"""Runs Python that nobody has read: with limits, without the network, and with nothing of it left afterwards."""
