"""Appends and topics as every caller needs them, coordinators and listeners alike."""
