"""A small draft model of one's own, taught by text that the target wrote (sequence-level distillation: Kim and Rush,
2016)."""
