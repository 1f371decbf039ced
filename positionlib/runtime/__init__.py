"""Which backend may run a call, and the handing over of a call to it."""
