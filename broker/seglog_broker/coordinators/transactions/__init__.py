"""The transaction coordinator: a state machine for each transactional id, and the service around them."""
