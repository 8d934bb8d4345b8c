"""Message passing where elimination is too wide, and elimination among the states that it promises."""
