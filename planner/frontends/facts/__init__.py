"""What families of operators say of themselves for an import; each module is a registry that their rooms fill."""
