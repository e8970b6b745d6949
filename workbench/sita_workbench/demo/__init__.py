"""`sita demo`: digits, two small networks, and what they show."""
