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

local function describe(condition)
  return (condition.reason or condition.type) .. ": " .. (condition.message or "")
end

local status = obj.status
if status == nil or status.conditions == nil then
  return { status = "Progressing", message = "the operator has not seen the job yet" }
end

local failed = find(status.conditions, "Failed")
if failed.status == "True" then
  return { status = "Degraded", message = describe(failed) }
end
-- What is said beside the health: it stops nothing.
local aside = ""
local warning = find(status.conditions, "Warning")
if warning.status == "True" then
  aside = "; " .. describe(warning)
end
local complete = find(status.conditions, "Complete")
if complete.status == "True" then
  return { status = "Healthy", message = (complete.message or "Complete") .. aside }
end
if obj.metadata.generation ~= nil and (status.observedGeneration or 0) < obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen the last change yet" }
end
if status.phase == "Suspended" then
  local admitted = find(status.conditions, "Admitted")
  local why = "the job is suspended"
  if admitted.status == "False" then
    why = "the job waits in its queue: " .. describe(admitted)
  end
  return { status = "Suspended", message = why .. aside }
end

local degraded = find(status.conditions, "Degraded")
if degraded.status == "True" and degraded.reason ~= "BelowWanted" then
  return { status = "Degraded", message = describe(degraded) }
end
local running = find(status.conditions, "Running")
if running.status == "True" then
  local progress = find(status.conditions, "NoProgress")
  if progress.status == "True" or progress.reason == "MaybeHung" then
    aside = "; " .. describe(progress) .. aside
  end
  return { status = "Healthy", message = (running.message or "") .. aside }
end
return { status = "Progressing", message = (running.reason or status.phase or "Pending") }
