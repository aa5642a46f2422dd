"""What is compared: ways of decoding the same prompts."""
