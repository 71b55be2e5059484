"""Coordinators: state machines whose state is a topic of the broker's own, and what runs them."""
