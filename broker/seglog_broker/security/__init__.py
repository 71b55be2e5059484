"""Who clients are and what they may do: TLS, SASL, principals and roles. Nothing here knows a wire or a socket."""
