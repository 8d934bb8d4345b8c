"""The steps of an import, one a module; `planner.frontends.importer` takes them in their order."""
