"""What pipes need of the engine that runs their tasks: the interface, the tasks, their reports, and the checkpoint."""
