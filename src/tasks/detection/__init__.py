"""Find quadrilaterals in an image and count the right ones, without any framework."""
