"""Matrix products and Einsum."""
