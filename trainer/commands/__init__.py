"""What `meshwright` can be told to do: a function for each command, which imports what it needs when it runs."""
