"""Run checks for anybody: exactness (verify), promises (prove), and this machine (doctor)."""
