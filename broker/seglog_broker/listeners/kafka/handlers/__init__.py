"""The requests of Kafka's wire, a module for each family of apis: their versions, and what each version changed."""
