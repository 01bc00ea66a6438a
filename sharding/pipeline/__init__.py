"""Pipeline parallelism: schedules as tables, and what runs them."""
