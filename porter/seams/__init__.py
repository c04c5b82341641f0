"""The few edits of upstream's own files, and putting the whole backend into a checkout and out again."""
