# A server without authentication, for requests from the machine only. Each server has at most one kernel, of a fixed id.
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager


class OneKernel(AsyncMappingKernelManager):
    def new_kernel_id(self, **kwargs):
        return "00000000-0000-4000-8000-000000000001"


c.ServerApp.kernel_manager_class = OneKernel
c.ServerApp.ip = "0.0.0.0"
c.ServerApp.port_retries = 0
c.ServerApp.allow_root = True
c.ServerApp.allow_remote_access = True
c.ServerApp.open_browser = False
c.ServerApp.token = ""
c.ServerApp.password = ""
c.ServerApp.disable_check_xsrf = True
c.ServerApp.root_dir = "/root"
