-- Argo CD's health of an ElasticJob: put it into the ConfigMap argocd-cm as
-- resource.customizations.health.elasticjob.dev_ElasticJob.
-- A job that trains is healthy, with fewer pods than it asks for too; one that does not start is degraded once a
-- condition says why.

local function find(conditions, type)
  for _, condition in ipairs(conditions) do
    if condition.type == type then
      return condition
    end
  end
  return {}
end

local status = obj.status
if status == nil or status.conditions == nil then
  return { status = "Progressing", message = "the operator has not seen the job yet" }
end

local failed = find(status.conditions, "Failed")
if failed.status == "True" then
  return { status = "Degraded", message = (failed.reason or "Failed") .. ": " .. (failed.message or "") }
end
local complete = find(status.conditions, "Complete")
if complete.status == "True" then
  return { status = "Healthy", message = complete.message or "Complete" }
end
if obj.metadata.generation ~= nil and (status.observedGeneration or 0) < obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen the last change yet" }
end
if status.phase == "Suspended" then
  return { status = "Suspended", message = "the job is suspended" }
end

local degraded = find(status.conditions, "Degraded")
if degraded.status == "True" and degraded.reason ~= "BelowWanted" then
  return { status = "Degraded", message = (degraded.reason or "Degraded") .. ": " .. (degraded.message or "") }
end
local running = find(status.conditions, "Running")
if running.status == "True" then
  return { status = "Healthy", message = running.message or "" }
end
return { status = "Progressing", message = (running.reason or status.phase or "Pending") }
