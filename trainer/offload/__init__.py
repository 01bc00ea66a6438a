"""What is kept off the devices, in host memory or on NVMe, and how it gets to where it is used and back."""
