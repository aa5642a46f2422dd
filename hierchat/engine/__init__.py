"""Generate with the target model: forward, slots, sampler, verification and the decode loop. No gradio, no sqlite."""
