"""Problems in files, and which solver answers them."""
