"""Programs of the checkout that are no part of the package."""
