# The driver on each node of a Nomad cluster, with both services. Volumes of a node are of use there alone: give the jobs that
# use one a constraint.
job "loop-block" {
  type = "system"

  group "driver" {
    task "driver" {
      driver = "docker"

      config {
        image      = "example.com/csidriver:1" # your build of examples/csidriver, with e2fsprogs
        args       = ["-node=${node.unique.name}", "-socket=/csi/csi.sock", "-root=/var/lib/loop-block", "-run=/run/loop-block"]
        privileged = true

        mount {
          type   = "bind"
          source = "/var/lib/loop-block" # which exists, and lies on a shared mount
          target = "/var/lib/loop-block"
          bind_options { propagation = "rshared" }
        }
        mount {
          type   = "bind"
          source = "/run/loop-block"
          target = "/run/loop-block"
        }
        mount {
          type   = "bind"
          source = "/dev"
          target = "/dev"
        }
      }

      csi_plugin {
        id        = "loop-block"
        type      = "monolith"
        mount_dir = "/csi"
      }

      kill_timeout = "60s"
    }
  }
}
