"""Memory limits as prices: the Lagrangian over elimination, branch and bound, repair of choices."""
