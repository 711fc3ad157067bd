"""`python -m vllm_kairos` is `kairos`."""

import sys

from vllm_kairos.cli.main import main

sys.exit(main())
