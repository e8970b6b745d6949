"""`sita demo`: digits, their corruptions, and two small networks."""
