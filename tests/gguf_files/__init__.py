"""GGUF files of families that run through transformers, as llama.cpp's converter writes them."""
