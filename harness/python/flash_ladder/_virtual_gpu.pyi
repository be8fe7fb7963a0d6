"""The extension module that is linked with the virtual GPU: the contents of _gpu, for arrays in host memory."""

from ._gpu import configs as configs
from ._gpu import device_info as device_info
from ._gpu import empty as empty
from ._gpu import forward as forward
from ._gpu import kernels as kernels
