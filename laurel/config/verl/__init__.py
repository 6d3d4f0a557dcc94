"""Keys of verl that are not in the tree, and what is said of each."""
