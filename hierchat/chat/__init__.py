"""One reply from prompt to record: prompt, context window, statistics, comparison. No gradio."""
