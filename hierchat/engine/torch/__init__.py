"""Run the target on torch: modules of transformers with our attention, slots and padding."""
