/* Preloaded into workers: a server that would listen on every interface listens on loopback.
 *
 * TensorFlow's gRPC server always binds the wildcard address
 * (tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc), and whoever reaches it can run
 * any op. Wrapping bind(2) is the only door: the server takes no address.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int descriptor, const struct sockaddr* address, socklen_t length) {
  static int (*next)(int, const struct sockaddr*, socklen_t) = 0;
  if (!next) next = (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "bind");
  if (address && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
    struct sockaddr_in here;
    memcpy(&here, address, sizeof(here));
    if (here.sin_addr.s_addr == htonl(INADDR_ANY)) {
      here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      return next(descriptor, (struct sockaddr*)&here, sizeof(here));
    }
  }
  if (address && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
    struct sockaddr_in6 here;
    memcpy(&here, address, sizeof(here));
    if (IN6_IS_ADDR_UNSPECIFIED(&here.sin6_addr)) {
      /* ::ffff:127.0.0.1, so that a dual-stack socket takes IPv4 clients on loopback. */
      memset(&here.sin6_addr, 0, sizeof(here.sin6_addr));
      here.sin6_addr.s6_addr[10] = here.sin6_addr.s6_addr[11] = 0xff;
      here.sin6_addr.s6_addr[12] = 127;
      here.sin6_addr.s6_addr[15] = 1;
      return next(descriptor, (struct sockaddr*)&here, sizeof(here));
    }
  }
  return next(descriptor, address, length);
}
