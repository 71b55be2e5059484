"""Groups of consumers, served: written to their topic, loaded, expired."""
