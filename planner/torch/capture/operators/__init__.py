"""ATen operators, family by family: each module registers the translators of its operators."""
