"""Find words: the maps that a detector learns, and boxes made of what it says, merged and counted."""
