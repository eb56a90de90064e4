"""One file per API: request -> response | Delayed."""
