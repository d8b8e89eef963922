#include "model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

namespace placer {
namespace {

// Far above any real step, far below overflow of a sum of 2^31 of them.
constexpr double kMaxSeconds = 1e30;
constexpr int64_t kMaxTotalBytes = int64_t{1} << 62;
constexpr int64_t kMaxCount = (int64_t{1} << 30);
constexpr int64_t kMaxDevices = 4096;
constexpr int64_t kMaxExecutorThreads = 256;  // as placer/devices/topology.py

template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

std::string Index(int64_t flat, int64_t columns) {
  if (columns == 0) return "[" + std::to_string(flat) + "]";
  return "[" + std::to_string(flat / columns) + ", " + std::to_string(flat % columns) + "]";
}

void CheckSeconds(const char* name, const double* values, int64_t size, int64_t columns) {
  for (int64_t i = 0; i < size; ++i) {
    if (!(values[i] >= 0.0 && values[i] <= kMaxSeconds)) {
      Fail(name, Index(i, columns), " is ", values[i], ": must be a finite number, 0 to 1e30");
    }
  }
}

void CheckBytes(const char* name, const int64_t* values, int64_t size, int64_t columns,
                double* total) {
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] < 0) Fail(name, Index(i, columns), " is ", values[i], ": must not be negative");
    *total += static_cast<double>(values[i]);
  }
}

void CheckRange(const char* name, const int32_t* values, int64_t size, int64_t low, int64_t high) {
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] < low || values[i] >= high) {
      Fail(name, "[", i, "] is ", values[i], ": must be at least ", low, " and below ", high);
    }
  }
}

void CheckPointers(const char* name, const int64_t* ptr, int64_t rows, int64_t total) {
  if (ptr[0] != 0) Fail(name, "[0] is ", ptr[0], ": must be 0");
  for (int64_t i = 0; i < rows; ++i) {
    if (ptr[i + 1] < ptr[i] || ptr[i + 1] > total) {
      Fail(name, "[", i + 1, "] is ", ptr[i + 1], ": must not decrease and not exceed ", total);
    }
  }
  if (ptr[rows] != total) Fail(name, "[", rows, "] is ", ptr[rows], ": must be ", total);
}

// Stable counting sort: positions of the items by key, rows[key]..rows[key + 1].
void GroupBy(const std::vector<int32_t>& keys, int64_t num_keys, std::vector<int64_t>* rows,
             std::vector<int32_t>* items) {
  rows->assign(num_keys + 1, 0);
  for (int32_t key : keys) {
    if (key >= 0) ++(*rows)[key + 1];
  }
  for (int64_t k = 0; k < num_keys; ++k) (*rows)[k + 1] += (*rows)[k];
  items->resize((*rows)[num_keys]);
  std::vector<int64_t> next(rows->begin(), rows->end() - 1);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] >= 0) (*items)[next[keys[i]]++] = static_cast<int32_t>(i);
  }
}

}  // namespace

Model::Model(const Inputs& in) {
  Validate(in);
  num_all_ops = static_cast<int32_t>(in.num_ops);
  num_tensors = static_cast<int32_t>(in.num_tensors);
  num_devices = static_cast<int32_t>(in.num_devices);
  BuildDevices(in);
  Build(in);
  BuildCosts(in);
}

void Model::Validate(const Inputs& in) const {
  const int64_t n = in.num_ops, t = in.num_tensors, d = in.num_devices, k = in.num_classes;
  if (n > kMaxCount || t > kMaxCount || in.num_edges > kMaxCount || in.num_controls > kMaxCount) {
    Fail("too many ops, tensors or edges: at most 2^30 of each");
  }
  if (d < 1) Fail("there are no devices");
  if (d > kMaxDevices) Fail("there are ", d, " devices: at most ", kMaxDevices);
  if (k < 1) Fail("there are no device classes");
  CheckSeconds("op_seconds", in.op_seconds, k * n, n);
  CheckSeconds("launch_seconds", in.launch_seconds, d, 0);
  CheckSeconds("latency", in.latency, d * d, d);
  CheckSeconds("seconds_per_byte", in.seconds_per_byte, d * d, d);
  CheckSeconds("send_cpu_seconds", in.send_cpu_seconds, d * d, d);
  CheckSeconds("send_cpu_seconds_per_byte", in.send_cpu_seconds_per_byte, d * d, d);
  CheckSeconds("recv_cpu_seconds", in.recv_cpu_seconds, d * d, d);
  CheckSeconds("recv_cpu_seconds_per_byte", in.recv_cpu_seconds_per_byte, d * d, d);
  double total = 0, copies = 0, limits = 0;
  CheckBytes("persistent_bytes", in.persistent_bytes, n, 0, &total);
  CheckBytes("temporary_bytes", in.temporary_bytes, k * n, n, &total);
  CheckBytes("tensor_bytes", in.tensor_bytes, t, 0, &copies);
  CheckBytes("tensor_local_bytes", in.tensor_local_bytes, t, 0, &total);
  CheckBytes("memory_limit", in.memory_limit, d, 0, &limits);
  if (total + copies * static_cast<double>(d) > static_cast<double>(kMaxTotalBytes)) {
    Fail("the sizes of all tensors on all devices together exceed 2^62 bytes");
  }
  CheckPointers("out_ptr", in.out_ptr, n, t);
  CheckPointers("in_ptr", in.in_ptr, n, in.num_edges);
  CheckRange("in_tensor", in.in_tensor, in.num_edges, 0, t);
  CheckRange("control_src", in.control_src, in.num_controls, 0, n);
  CheckRange("control_dst", in.control_dst, in.num_controls, 0, n);
  CheckRange("device_class", in.device_class, d, 0, k);
  CheckRange("concurrency", in.concurrency, d, 1, int64_t{1} << 31);
  CheckRange("executor_threads", in.executor_threads, d, 0, kMaxExecutorThreads + 1);
  for (int64_t i = 0; i < d; ++i) {
    if (in.executor_threads[i] > 0 && in.concurrency[i] != 1) {
      Fail("executor_threads[", i, "] is ", in.executor_threads[i], ": concurrency[", i, "] is ",
           in.concurrency[i], ", must be 1");
    }
  }
  CheckSeconds("contention", in.contention, d * d, d);
  CheckRange("channels", in.channels, d * d * 2, -1, int64_t{1} << 31);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t inputs = in.in_ptr[i + 1] - in.in_ptr[i];
    for (int64_t o = in.out_ptr[i]; o < in.out_ptr[i + 1]; ++o) {
      if (in.tensor_alias[o] < -1 || in.tensor_alias[o] >= inputs) {
        Fail("tensor_alias[", o, "] is ", in.tensor_alias[o], ": op ", i, " has ", inputs,
             " data inputs");
      }
    }
  }
}

void Model::BuildDevices(const Inputs& in) {
  const int32_t d = num_devices;
  memory_limit.assign(in.memory_limit, in.memory_limit + d);
  concurrency.assign(in.concurrency, in.concurrency + d);
  executor_threads.assign(in.executor_threads, in.executor_threads + d);
  contention.assign(static_cast<size_t>(d) * d, 0.0);
  for (int32_t a = 0; a < d; ++a) {
    for (int32_t b = 0; b < d; ++b) {
      const size_t i = static_cast<size_t>(a) * d + b;
      if (a == b || executor_threads[a] == 0 || executor_threads[b] == 0) continue;
      contention[i] = in.contention[i];
      contends = contends || contention[i] > 0;
    }
  }
  std::map<int32_t, int32_t> dense;
  auto channel = [&](int32_t id) {
    return id < 0 ? -1 : dense.emplace(id, static_cast<int32_t>(dense.size())).first->second;
  };
  links.resize(static_cast<size_t>(d) * d);
  for (int32_t s = 0; s < d; ++s) {
    for (int32_t r = 0; r < d; ++r) {
      if (s == r) continue;
      const size_t i = static_cast<size_t>(s) * d + r;
      Link& link = links[i];
      link.latency = in.latency[i];
      link.seconds_per_byte = in.seconds_per_byte[i];
      link.send_seconds = in.send_cpu_seconds[i];
      link.send_seconds_per_byte = in.send_cpu_seconds_per_byte[i];
      link.recv_seconds = in.recv_cpu_seconds[i];
      link.recv_seconds_per_byte = in.recv_cpu_seconds_per_byte[i];
      const bool sends = link.send_seconds > 0 || link.send_seconds_per_byte > 0;
      const bool receives = link.recv_seconds > 0 || link.recv_seconds_per_byte > 0;
      link.send_beside = sends && executor_threads[s] > 0;
      link.recv_beside = receives && executor_threads[r] > 0;
      link.send_task = sends && !link.send_beside;
      link.recv_task = receives && !link.recv_beside;
      link.channel0 = channel(in.channels[2 * i]);
      link.channel1 = channel(in.channels[2 * i + 1]);
      if (link.channel0 < 0) std::swap(link.channel0, link.channel1);
      if (link.channel0 == link.channel1) link.channel1 = -1;
    }
  }
  num_channels = static_cast<int32_t>(dense.size());
}

void Model::Build(const Inputs& in) {
  const int64_t n = in.num_ops, t = in.num_tensors;
  std::vector<int32_t> producer(t);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t o = in.out_ptr[i]; o < in.out_ptr[i + 1]; ++o) {
      producer[o] = static_cast<int32_t>(i);
    }
  }
  // Consumers of every tensor in edge order. Edges of one op from one tensor are adjacent and are
  // merged: they arrive together, wait together and end together.
  std::vector<int32_t> edge_op(in.num_edges);
  std::vector<int32_t> keys(in.num_edges);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t e = in.in_ptr[i]; e < in.in_ptr[i + 1]; ++e) {
      edge_op[e] = static_cast<int32_t>(i);
      keys[e] = in.executed[i] && in.executed[producer[in.in_tensor[e]]] ? in.in_tensor[e] : -1;
    }
  }
  std::vector<int64_t> tensor_rows;
  std::vector<int32_t> tensor_items;
  GroupBy(keys, t, &tensor_rows, &tensor_items);
  {
    int64_t write = 0;
    for (int64_t x = 0; x < t; ++x) {
      const int64_t begin = tensor_rows[x], end = tensor_rows[x + 1];
      tensor_rows[x] = write;
      for (int64_t j = begin; j < end; ++j) {
        const int32_t op = edge_op[tensor_items[j]];
        if (write > tensor_rows[x] && tensor_items[write - 1] == op) continue;
        tensor_items[write++] = op;
      }
    }
    tensor_rows[t] = write;
    tensor_items.resize(write);
  }
  std::vector<int32_t> control_keys(in.num_controls);
  for (int64_t c = 0; c < in.num_controls; ++c) {
    const int32_t src = in.control_src[c];
    control_keys[c] = in.executed[src] && in.executed[in.control_dst[c]] ? src : -1;
  }
  std::vector<int64_t> control_rows;
  std::vector<int32_t> control_items;
  GroupBy(control_keys, n, &control_rows, &control_items);
  for (int32_t& item : control_items) item = in.control_dst[item];

  std::vector<int32_t> degree(n, 0);
  for (int32_t op : tensor_items) ++degree[op];
  for (int32_t op : control_items) ++degree[op];

  // The order of one device: first ready, first run.
  id_of.assign(n, -1);
  int64_t executed = 0;
  {
    std::vector<int32_t> waiting(degree);
    for (int64_t i = 0; i < n; ++i) {
      if (!in.executed[i]) continue;
      ++executed;
      if (waiting[i] == 0) op_of.push_back(static_cast<int32_t>(i));
    }
    num_sources = static_cast<int32_t>(op_of.size());
    op_of.reserve(executed);
    for (size_t head = 0; head < op_of.size(); ++head) {
      const int32_t i = op_of[head];
      id_of[i] = static_cast<int32_t>(head);
      auto done = [&](int32_t successor) {
        if (--waiting[successor] == 0) op_of.push_back(successor);
      };
      for (int64_t j = tensor_rows[in.out_ptr[i]]; j < tensor_rows[in.out_ptr[i + 1]]; ++j) {
        done(tensor_items[j]);
      }
      for (int64_t j = control_rows[i]; j < control_rows[i + 1]; ++j) done(control_items[j]);
    }
    if (static_cast<int64_t>(op_of.size()) != executed) {
      // Every op left waits for another one left: walk backwards until one repeats.
      std::vector<int32_t> control_source(n, -1);
      for (int64_t c = 0; c < in.num_controls; ++c) {
        const int32_t src = in.control_src[c];
        if (control_keys[c] >= 0 && id_of[src] < 0) control_source[in.control_dst[c]] = src;
      }
      int32_t at = 0;
      while (!in.executed[at] || id_of[at] >= 0) ++at;
      std::vector<int32_t> seen(n, -1), path;
      while (seen[at] < 0) {
        seen[at] = static_cast<int32_t>(path.size());
        path.push_back(at);
        int32_t previous = control_source[at];
        for (int64_t e = in.in_ptr[at]; e < in.in_ptr[at + 1] && previous < 0; ++e) {
          const int32_t p = producer[in.in_tensor[e]];
          if (in.executed[p] && id_of[p] < 0) previous = p;
        }
        at = previous;
      }
      std::ostringstream cycle;
      cycle << at;
      int shown = 0;
      for (size_t j = path.size(); j-- > static_cast<size_t>(seen[at]);) {
        if (++shown > 12) {
          cycle << " -> ...";
          break;
        }
        cycle << " -> " << path[j];
      }
      Fail("the executed ops contain a cycle: ", cycle.str());
    }
    num_ops = static_cast<int32_t>(executed);
  }

  inline_op.resize(num_ops);
  for (int32_t id = 0; id < num_ops; ++id) inline_op[id] = in.inline_op[op_of[id]];
  indegree.resize(num_ops);
  owned_begin.assign(1, 0);
  std::vector<int32_t> output_of(t, -1);
  const auto add_output = [this](const std::vector<int32_t>& items, int64_t begin, int64_t end,
                                 int32_t producer, int32_t tensor) {
    Output output = {0, 0, static_cast<int32_t>(consumers.size()), 0, -1, producer};
    for (int64_t j = begin; j < end; ++j) consumers.push_back(id_of[items[j]]);
    output.consumer_end = static_cast<int32_t>(consumers.size());
    outputs.push_back(output);
    output_tensor.push_back(tensor);
  };
  for (int32_t id = 0; id < num_ops; ++id) {
    const int32_t i = op_of[id];
    indegree[id] = degree[i];
    ranges.push_back({static_cast<int32_t>(outputs.size()), 0});
    for (int64_t x = in.out_ptr[i]; x < in.out_ptr[i + 1]; ++x) {
      const bool consumed = tensor_rows[x] < tensor_rows[x + 1];
      int32_t alias = -1;
      if (in.tensor_alias[x] >= 0) {
        // The input's own op comes earlier in op_of, so its output is numbered already. An input
        // that no executed op makes has no buffer to share; the output then owns one.
        alias = output_of[in.in_tensor[in.in_ptr[i] + in.tensor_alias[x]]];
      }
      if (alias < 0) {
        owned.emplace_back(static_cast<int32_t>(x), in.tensor_local_bytes[x]);
        owned_output.push_back(consumed ? static_cast<int32_t>(outputs.size()) : -1);
      }
      if (!consumed) continue;
      output_of[x] = static_cast<int32_t>(outputs.size());
      add_output(tensor_items, tensor_rows[x], tensor_rows[x + 1], id, static_cast<int32_t>(x));
      outputs.back().copy_bytes = in.tensor_bytes[x];
      outputs.back().local_bytes = alias < 0 ? in.tensor_local_bytes[x] : 0;
      outputs.back().alias = alias;
    }
    if (control_rows[i] < control_rows[i + 1]) {
      add_output(control_items, control_rows[i], control_rows[i + 1], id, -1);
    }
    owned_begin.push_back(static_cast<int64_t>(owned.size()));
  }
  num_outputs = static_cast<int32_t>(outputs.size());
  ranges.push_back({num_outputs, 0});
  for (const Output& output : outputs) {
    output_has_bytes.push_back(output.copy_bytes > 0 || output.local_bytes > 0 ? -1 : 0);
  }

  std::vector<int32_t> last(t, -1);  // the op that listed this tensor last, to merge duplicates
  for (int32_t id = 0; id < num_ops; ++id) {
    const int32_t i = op_of[id];
    for (int64_t e = in.in_ptr[i]; e < in.in_ptr[i + 1]; ++e) {
      const int32_t x = in.in_tensor[e];
      const int32_t output = output_of[x];
      if (output < 0 || last[x] == i) continue;
      last[x] = i;
      const Output& o = outputs[output];
      const bool alias = o.alias >= 0;
      if (!alias && o.copy_bytes == 0 && o.local_bytes == 0) continue;
      releases.push_back({2 * static_cast<uint32_t>(output) + (alias ? 1 : 0), o.producer});
    }
    ranges[id + 1].release_begin = static_cast<int32_t>(releases.size());
  }
  persistent_bytes.assign(in.persistent_bytes, in.persistent_bytes + n);
  for (int64_t i = 0; i < n; ++i) {
    if (persistent_bytes[i] > 0) persistent_ops.push_back(static_cast<int32_t>(i));
  }
}

void Model::BuildCosts(const Inputs& in) {
  // Devices of one class and one launch time run every op alike: one kind.
  std::map<std::pair<int32_t, double>, int32_t> kinds;
  std::vector<std::pair<int32_t, double>> kind_list;
  for (int32_t d = 0; d < num_devices; ++d) {
    const std::pair<int32_t, double> key(in.device_class[d], in.launch_seconds[d]);
    const auto found = kinds.emplace(key, static_cast<int32_t>(kinds.size()));
    if (found.second) kind_list.push_back(key);
    kind_of_device.push_back(found.first->second);
  }
  num_kinds = static_cast<int32_t>(kind_list.size());
  costs.resize(num_kinds);
  temporary_bytes.resize(static_cast<size_t>(num_kinds) * num_ops);
  for (int32_t k = 0; k < num_kinds; ++k) {
    costs[k].resize(num_ops);
    const double* seconds = in.op_seconds + kind_list[k].first * in.num_ops;
    const int64_t* temporary = in.temporary_bytes + kind_list[k].first * in.num_ops;
    for (int32_t id = 0; id < num_ops; ++id) {
      const int32_t i = op_of[id];
      OpCost& cost = costs[k][id];
      cost.seconds = seconds[i] + kind_list[k].second;
      cost.start_bytes = cost.end_bytes = temporary[i];
      temporary_bytes[static_cast<size_t>(k) * num_ops + id] = temporary[i];
      for (int64_t j = owned_begin[id]; j < owned_begin[id + 1]; ++j) {
        cost.start_bytes += owned[j].second;
        if (owned_output[j] < 0) cost.end_bytes += owned[j].second;
      }
    }
  }
  std::vector<double> least(num_ops);  // upward rank by least times, without transfers
  for (int32_t id = num_ops; id-- > 0;) {
    double tail = 0;
    for (int32_t o = ranges[id].output_begin; o < ranges[id + 1].output_begin; ++o) {
      for (int32_t j = outputs[o].consumer_begin; j < outputs[o].consumer_end; ++j) {
        tail = std::max(tail, least[consumers[j]]);
      }
    }
    double shortest = std::numeric_limits<double>::infinity();
    for (int32_t k = 0; k < num_kinds; ++k) {
      costs[k][id].rank = costs[k][id].seconds + tail;
      shortest = std::min(shortest, costs[k][id].rank);
    }
    least[id] = shortest;
  }
}

}  // namespace placer
